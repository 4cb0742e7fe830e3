require "fiddle"
driver = Fiddle.dlopen("libcuda.so.1")
POINTER = Fiddle::TYPE_VOIDP
function = ->(name, *types) { Fiddle::Function.new(driver[name], types, Fiddle::TYPE_INT) }
word = Fiddle::Pointer.malloc(8, Fiddle::RUBY_FREE)
read = -> { word[0, 8].unpack1("Q") }
raise unless function.("cuInit", Fiddle::TYPE_INT).call(0).zero?
raise unless function.("cuDevicePrimaryCtxRetain", POINTER, Fiddle::TYPE_INT).call(word, 0).zero?
raise unless function.("cuCtxSetCurrent", POINTER).call(read.call).zero?
allocate = function.("cuMemAlloc_v2", POINTER, Fiddle::TYPE_SIZE_T)
release = function.("cuMemFree_v2", Fiddle::TYPE_LONG_LONG)
answered = (1..40).count { allocate.call(word, 4000).zero? && release.call(read.call).zero? }
puts "answered #{answered}"
exit 7
