//! DeviceShare: GPUs, RDMA and FPGA devices.
