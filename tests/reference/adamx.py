"""AdamX as Algorithm 1 has it, one number at a time."""

import math


class SlowAdamX:
    """Lines 4 to 7 of Algorithm 1 for a list of parameters, each a list of floats; `step` takes their gradients."""

    def __init__(
        self,
        values,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        beta1_decay=1 - 1e-8,
        bias_correction=False,
        weight_decay=0.0,
        maximize=False,
    ):
        self.theta = list(values)
        self.m = [0.0] * len(self.theta)
        self.v = [0.0] * len(self.theta)
        self.v_hat = [0.0] * len(self.theta)
        self.history = []  # v of every step, for the closed form of v̂
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, beta1_decay
        self.bias_correction, self.weight_decay, self.maximize = bias_correction, weight_decay, maximize

    def beta1(self, t):
        return self.betas[0] * self.decay ** (t - 1)

    def step(self, gradients):
        t = len(self.history) + 1
        beta1, beta2 = self.beta1(t), self.betas[1]
        for u, gradient in enumerate(gradients):
            g = -gradient if self.maximize else gradient
            self.m[u] = beta1 * self.m[u] + (1 - beta1) * g
            self.v[u] = beta2 * self.v[u] + (1 - beta2) * g**2
            if t == 1:
                self.v_hat[u] = self.v[u]
            else:
                ratio = (1 - beta1) ** 2 / (1 - self.beta1(t - 1)) ** 2
                self.v_hat[u] = max(ratio * self.v_hat[u], self.v[u])
            m, v_hat = self.m[u], self.v_hat[u]
            if self.bias_correction:
                m, v_hat = m / (1 - self.betas[0] ** t), v_hat / (1 - beta2**t)
            self.theta[u] -= self.lr * self.weight_decay * self.theta[u]
            self.theta[u] -= self.lr * m / (math.sqrt(v_hat) + self.eps)
        self.history.append(list(self.v))

    def closed_form(self):
        """v̂ as the first auxiliary lemma has it: max over s of (1 − β₁,t)² / (1 − β₁,s)² · v_s."""
        t = len(self.history)
        ratios = [(1 - self.beta1(t)) ** 2 / (1 - self.beta1(s)) ** 2 for s in range(1, t + 1)]
        return [max(r * v[u] for r, v in zip(ratios, self.history, strict=True)) for u in range(len(self.theta))]
