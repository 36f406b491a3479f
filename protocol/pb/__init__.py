"""Generated protobuf messages; `make proto` makes them again from protocol/proto."""
