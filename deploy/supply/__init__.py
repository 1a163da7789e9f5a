"""Supply chain: distributions of the project, licences, known vulnerabilities."""
