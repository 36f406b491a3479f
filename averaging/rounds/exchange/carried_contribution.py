"""A leaver's contribution, which its carrier keeps in memory for the round to come (R8).

Rules: R8 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from averaging.arithmetic.batched_codec import chunk_views, new_room, span_bytes
from averaging.codecs import Codec
from protocol.errors import RemoteProtocolError
from protocol.ids import Root
from protocol.merkle import MerkleTree, leaf_hash
from protocol.rounds.messages.messages import Member, SliceSpec
from protocol.rounds.messages.requests import ContributionHeader
from protocol.tensors.tensor_schema import ChunkGrid


class CarriedContribution:
    """The leaver's signed claim, the hashes of its chunks, and those chunks that have come. Each is checked when it comes.

    Attributes:
        header: the claim, in the leaver's envelope.
        credential: proof of the leaver's admission, where the base roster does not have it.
        data: memory for all encoded chunks, in grid order, joined.
        chunks: each of them, as a view of `data`; valid once it is `here`.
        here: the numbers of the chunks that have come.
    """

    def __init__(
        self, header: bytes, credential: bytes, claim: ContributionHeader, codec: Codec, grid: ChunkGrid
    ) -> None:
        """Raises MachineError if there is not enough memory."""
        self.header = header
        self.credential = credential
        self.here = set[int]()
        self._claim = claim
        self._codec = codec
        self._grid = grid
        self._tree: MerkleTree | None = None
        self._room = new_room(codec, grid)
        self.data = self._room.toreadonly()
        self.chunks = chunk_views(self._room, codec, grid)

    @property
    def member(self) -> Member:
        """The process that made it."""
        return self._claim.member

    @property
    def root(self) -> Root:
        """Of all its chunks, as it signed."""
        return self._claim.root

    @property
    def tokens(self) -> int:
        """Trained into it."""
        return self._claim.tokens

    @property
    def is_known(self) -> bool:
        """Whether the hashes of its chunks are here. Nothing of it counts before."""
        return self._tree is not None

    @property
    def tree(self) -> MerkleTree:
        """Over the leaf hashes of its chunks.

        Raises:
            RemoteProtocolError: they have not come.
        """
        if self._tree is None:
            raise RemoteProtocolError("a contribution without the hashes of its chunks", "its hashes first")
        return self._tree

    def know(self, tree: MerkleTree) -> None:
        """Take the hashes of its chunks.

        Raises:
            RemoteProtocolError: they do not make the root that the leaver signed.
        """
        if tree.root != self.root:
            raise RemoteProtocolError("chunk hashes that do not make the signed root", "the hashes of the contribution")
        self._tree = tree

    def keep(self, chunk: int, data: memoryview) -> None:
        """Keep a chunk; `data` is copied. Its length is that of the chunk.

        Raises:
            RemoteProtocolError: other bytes than those that were signed.
        """
        if leaf_hash(data) != self.tree.levels[0][chunk]:
            raise RemoteProtocolError(f"chunk {chunk} with another hash", "the chunk that was signed")
        place = span_bytes(self._codec, self._grid, chunk, chunk + 1)
        self._room[place.start : place.stop] = data
        self.here.add(chunk)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here."""
        return len(self.here) == len(self.chunks)

    def has(self, part: SliceSpec) -> bool:
        """Whether all of this slice is here."""
        return self.is_known and self.here.issuperset(range(part.first_chunk, part.stop_chunk))
