"""Archives of models: `dualstream dump` writes them, `dualstream restore` reads them.

format.py   bytes of an archive; documented in docs/operate/archive.md
dump.py     models of a store into an archive
restore.py  models of an archive into a store
"""
