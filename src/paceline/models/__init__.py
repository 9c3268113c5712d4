"""What a model is: files, configuration, weights, tokenizer, chat template."""
