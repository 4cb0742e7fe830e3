"""Poisson's equation on a square is solved with conjugate gradients, in expressions of whole arrays."""

import cupy

import common


def laplacian(field):
    result = 4 * field
    result[1:] -= field[:-1]
    result[:-1] -= field[1:]
    result[:, 1:] -= field[:, :-1]
    result[:, :-1] -= field[:, 1:]
    return result


def make():
    cupy.random.seed(0)
    sources = [cupy.random.standard_normal((768, 768), dtype=cupy.float32) for _ in range(4)]

    def step(number):
        solution = cupy.zeros_like(sources[0])
        residual = sources[number % 4] - laplacian(solution)
        direction, squares = residual, (residual * residual).sum()
        for _ in range(10):
            image = laplacian(direction)
            length = squares / (direction * image).sum()
            solution = solution + length * direction
            residual = residual - length * image
            before, squares = squares, (residual * residual).sum()
            direction = residual + squares / before * direction
        return squares

    return step


if __name__ == "__main__":
    common.run_cupy(make, steps=300)
