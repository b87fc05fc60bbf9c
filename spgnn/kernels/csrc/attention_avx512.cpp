#define SPGNN_ISA avx512
#include "attention_table.hpp"
