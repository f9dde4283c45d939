"""Answers of trials that train on them: decoding by the rows of the bank that train, rewards, evaluation by reward."""
