"""`potluck checkpoint fetch` beside a running peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BESIDE_A_PEER = """
import sys
from pathlib import Path
from averaging.system.process_record import running_here
from peer.session import local_models
from protocol.errors import MachineError
with running_here(Path(sys.argv[1])):
    try:
        local_models.fetch_model("", "", Path(sys.argv[1]))
    except MachineError as error:
        print(error.one_line())
print("torch" in sys.modules)
"""


def test_fetch_beside_the_own_peer_is_refused_with_the_way_to_its_model_before_torch_is_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BESIDE_A_PEER, str(tmp_path)]
    said, has_torch = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    assert "potluck checkpoint export latest OUT_DIR" in said
    assert has_torch == "False"
