"""What this project is made of: its distributions, their licences, their known vulnerabilities."""
