/* Constants among the instructions that hold the two bytes of a system call: right behind a function, and in between functions. Nothing in front
 * of them loads a number. They stay what they are: exit status 0. */
#include <string.h>

#define CONSTANTS ".quad 0x9090909090909090, 0x9090909090909090, 0x050f909090909090, 0x0706050403020190\n"

__asm__(".text\n.globl before\n.type before,@function\nbefore:\n.cfi_startproc\nret\n.cfi_endproc\n.size before,.-before\n"
        ".balign 16\nconstants:\n" CONSTANTS ".balign 64\n"
        ".globl behind\n.type behind,@function\nbehind:\n.cfi_startproc\nret\n.cfi_endproc\n.size behind,.-behind\n");
__asm__(".section .rodata\n.balign 64\nexpected:\n" CONSTANTS ".text\n");

extern const unsigned char constants[], expected[];

int main(void) {
    return memcmp(constants, expected, 32) != 0;
}
