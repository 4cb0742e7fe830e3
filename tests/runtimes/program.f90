program pool
  use iso_c_binding
  implicit none
  interface
    integer(c_int) function initialise(flags) bind(c, name="cuInit")
      import; integer(c_int), value :: flags
    end function
    integer(c_int) function retain(context, device) bind(c, name="cuDevicePrimaryCtxRetain")
      import; type(c_ptr) :: context; integer(c_int), value :: device
    end function
    integer(c_int) function set_current(context) bind(c, name="cuCtxSetCurrent")
      import; type(c_ptr), value :: context
    end function
    integer(c_int) function allocate_device(memory, bytes) bind(c, name="cuMemAlloc_v2")
      import; integer(c_int64_t) :: memory; integer(c_size_t), value :: bytes
    end function
    integer(c_int) function release(memory) bind(c, name="cuMemFree_v2")
      import; integer(c_int64_t), value :: memory
    end function
  end interface
  type(c_ptr) :: context
  integer(c_int64_t) :: memory
  integer :: i, answered
  if (initialise(0) /= 0) stop 1
  if (retain(context, 0) /= 0) stop 1
  if (set_current(context) /= 0) stop 1
  answered = 0
  do i = 1, 40
    if (allocate_device(memory, 4000_c_size_t) /= 0) cycle
    if (release(memory) == 0) answered = answered + 1
  end do
  print '(a, i0)', "answered ", answered
  call exit(7)
end program
