"""Modules with the layout of ``torch_utils`` in StyleGAN2-ADA and StyleGAN3 repositories."""
