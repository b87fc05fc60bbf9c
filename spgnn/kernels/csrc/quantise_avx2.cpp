#define SPGNN_ISA avx2
#include "quantise_table.hpp"
