/*
 * An LD_AUDIT library that sees every lazily bound call begin and return: the dynamic linker makes
 * such calls itself, so that the callee's return address lies in there.
 */
#include <link.h>
#include <stdint.h>

unsigned int la_version(unsigned int version)
{
    (void)version;
    return LAV_CURRENT;
}

unsigned int la_objopen(struct link_map *map, Lmid_t list, uintptr_t *cookie)
{
    (void)map, (void)list, (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
                       unsigned int *flags, const char *name)
{
    (void)index, (void)from, (void)to, (void)flags, (void)name;
    return symbol->st_value;
}

/* A frame size for the arguments that may lie on the stack is what brings la_pltexit about. */
#if defined(__x86_64__)
Elf64_Addr la_x86_64_gnu_pltenter(Elf64_Sym *symbol, unsigned int index, uintptr_t *from,
                                  uintptr_t *to, La_x86_64_regs *registers, unsigned int *flags,
                                  const char *name, long *frame_bytes)
#else
Elf64_Addr la_aarch64_gnu_pltenter(Elf64_Sym *symbol, unsigned int index, uintptr_t *from,
                                   uintptr_t *to, La_aarch64_regs *registers, unsigned int *flags,
                                   const char *name, long *frame_bytes)
#endif
{
    (void)index, (void)from, (void)to, (void)registers, (void)flags, (void)name;
    *frame_bytes = 256;
    return symbol->st_value;
}

#if defined(__x86_64__)
unsigned int la_x86_64_gnu_pltexit(Elf64_Sym *symbol, unsigned int index, uintptr_t *from,
                                   uintptr_t *to, const La_x86_64_regs *in, La_x86_64_retval *out,
                                   const char *name)
#else
unsigned int la_aarch64_gnu_pltexit(Elf64_Sym *symbol, unsigned int index, uintptr_t *from,
                                    uintptr_t *to, const La_aarch64_regs *in,
                                    La_aarch64_retval *out, const char *name)
#endif
{
    (void)symbol, (void)index, (void)from, (void)to, (void)in, (void)out, (void)name;
    return 0;
}
