"""When each word of finished speech is heard."""
