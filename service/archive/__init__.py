"""Archives of models: `dualstream dump` writes them, `dualstream restore` reads them.

format.py   the bytes of an archive; docs/operate/archive.md documents them
dump.py     a store's models into an archive
restore.py  an archive's models into a store
"""
