#define SPGNN_ISA baseline
#include "attention_table.hpp"
