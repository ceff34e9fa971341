"""Small trained modules: the drafter's vocabulary heads and their files. Know no model, cache or tokenizer."""
