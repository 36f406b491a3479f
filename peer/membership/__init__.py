"""Being let in and staying in: invite, credential, bans, addresses, one process an identity."""
