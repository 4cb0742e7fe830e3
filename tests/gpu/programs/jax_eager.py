"""A small network is trained in JAX without jit: every operation makes an array of its own."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import common  # noqa: E402


def loss_of(weights, data, wanted):
    for weight in weights:
        data = jnp.tanh(data @ weight)
    return jnp.mean((data - wanted) ** 2)


def make():
    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    weights = [jax.random.normal(key, (512, 512)) / 23 for key in keys[:4]]
    data, wanted = jax.random.normal(keys[4], (1024, 512)), jax.random.normal(keys[5], (1024, 512))
    moments = [jnp.zeros_like(weight) for weight in weights]

    def step(number):
        nonlocal weights, moments
        rows = 256 + 64 * (number % 12)
        loss, gradients = jax.value_and_grad(loss_of)(weights, data[:rows], wanted[:rows])
        moments = [0.9 * moment + gradient for moment, gradient in zip(moments, gradients)]
        weights = [weight - 0.01 * moment for weight, moment in zip(weights, moments)]
        return loss

    return step


if __name__ == "__main__":
    common.run_jax(make, steps=150)
