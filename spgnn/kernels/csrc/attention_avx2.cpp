#define SPGNN_ISA avx2
#include "attention_table.hpp"
