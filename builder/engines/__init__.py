"""The bridge to other engines: their serve commands, written and read, and their logs beside a plan."""
