"""All ranks at one moment: who waits for whom, what their libraries say, and the sentences for it."""
