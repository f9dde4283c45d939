"""Several tasks on several GPUs: a durable queue, the head that places its tasks, and the workers that run them."""
