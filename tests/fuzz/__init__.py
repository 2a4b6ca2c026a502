"""Whatever people or workers hand over, `e2e` answers with a code of its own and a message that names the place."""
