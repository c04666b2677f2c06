#include "../common/device.cuh"
