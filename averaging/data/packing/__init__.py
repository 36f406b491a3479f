"""Packs documents into shards, and routes documents to experts."""
