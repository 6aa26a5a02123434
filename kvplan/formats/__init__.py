"""How it is written: terminal, Markdown, HTML, JSON, JUnit, GitHub."""
