import torch
from beside import WIDTH

if __name__ == "__main__":
    print(torch.zeros(WIDTH))
