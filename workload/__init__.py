"""The bundled workload: two MNIST programs that train, save, resume and report inside the image."""
