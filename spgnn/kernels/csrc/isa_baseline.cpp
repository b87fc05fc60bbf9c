#define SPGNN_ISA baseline
#include "isa_table.hpp"
