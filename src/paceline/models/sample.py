"""A page of common text, to see how much of it two vocabularies can both say."""

SAMPLE = '''The bridge was closed for the winter, so everyone on the far side had to take the long way round. It \
added twenty minutes to the journey, and nobody complained more than the postman: "Three hundred letters," he said, \
"and I haven't even started." By February the council had spent about 48,000 euros on repairs.

To prepare the sauce, melt 50 g of butter over a low heat; add the flour and stir for two minutes. Pour in the milk \
slowly, whisking all the time, until the mixture thickens. Season with salt, pepper and a little nutmeg.

1. Photosynthesis converts light energy into chemical energy that organisms can use later.
2. The derivative of x^2 + 3x is 2x + 3, which is positive when x > -1.5.
3. In 1969, more than 600 million people watched the first human being walk on the moon.

- **Performance**: measure first, then optimise what is slow.
- **Security**: never trust input; validate, escape, and log it.

def merge(left, right):
    """Merge two sorted lists into one."""
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]

class Account:
    def __init__(self, owner: str, balance: float = 0.0) -> None:
        self.owner = owner
        self.balance = balance

    def withdraw(self, amount: float) -> float:
        if amount > self.balance:
            raise ValueError("insufficient funds")
        self.balance -= amount
        return self.balance

const users = await fetch("/api/users?page=2").then((response) => response.json());
for (let i = 0; i < users.length; i++) {
  console.log(`${users[i].name}: ${users[i].email}`);
}

SELECT name, COUNT(*) AS orders FROM customers JOIN orders USING (customer_id) GROUP BY name ORDER BY orders DESC;

Thank you for your message. I'm sorry to hear that the package has not arrived yet. Could you please confirm the \
address, so that we can look into it? We will get back to you within two working days.

Die Sitzung beginnt um neun Uhr; bitte bringen Sie Ihre Unterlagen mit. Le train de huit heures est déjà parti. \
El museo está cerrado los lunes por la mañana.
'''
