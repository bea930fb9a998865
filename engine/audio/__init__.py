"""Sound after it was spoken: how loud it is. Knows no model."""
