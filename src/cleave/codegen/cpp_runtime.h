// What every generated C++ kernel stands on, by concern: element types and positions, vector mathematics, scratch
// memory, and products of tiles. A kernel is one translation unit of its own text and these files.
//
// Tiles are dense and row-major over the extents of the moment.
#pragma once

#include "cpp_base.h"
#include "cpp_maths.h"
#include "cpp_memory.h"
#include "cpp_pairs.h"
#include "cpp_products.h"
#include "cpp_streams.h"
#include "cpp_vectors.h"
