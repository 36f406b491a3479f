"""The daemons' toolkit: logs, settings, HTTP, folders of runs, bug reports."""
