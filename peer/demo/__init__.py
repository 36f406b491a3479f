"""`potluck demo`: a whole run on this machine, with a kill and a plot."""
