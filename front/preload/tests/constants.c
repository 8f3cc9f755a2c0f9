/* Constants among the instructions, as assembly puts them there and some linkers all of them: what looks like a system call stays as it is.
 * Exit status 0 if so. The call is one that the library looks at where it finds it, and that no file is served by: with one that is served
 * the library would take the constants for code which it does not reach, and stand aside. */
#include <string.h>

/* Eight bytes: mov $318, %eax (getrandom); syscall; nop. */
#define CALL ".byte 0xb8, 0x3e, 1, 0, 0, 0x0f, 0x05, 0x90\n"

__asm__(".text\n.balign 64\nconstants:\n.rept 512\n" CALL ".endr\n");
__asm__(".section .rodata\n.balign 64\nexpected:\n.rept 512\n" CALL ".endr\n.text\n");

extern const unsigned char constants[], expected[];

int main(void) {
    return memcmp(constants, expected, 4096) != 0;
}
