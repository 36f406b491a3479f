"""libp2p through hivemind: its daemon, streams and directory."""
