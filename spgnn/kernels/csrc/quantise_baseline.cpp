#define SPGNN_ISA baseline
#include "quantise_table.hpp"
