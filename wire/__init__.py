"""What client and server share: schemas, problems, chunking."""
