"""Operations of models whose clients drive the training, packed into shared passes."""
