/*
 * Shifts a program's time of day by the number of seconds in the file that DIBS_CLOCK
 * names; the number may change at any time. It is loaded before the C library
 * (LD_PRELOAD). Monotonic clocks do not change.
 *
 * A program in Go does not ask the C library, but the function that the kernel maps into each
 * process (vDSO). With DIBS_CLOCK_GO that function is overwritten, on x86-64 only.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void look(void)
{
	const char *path = getenv("DIBS_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *page;

	if (fd < 0)
		return;
	page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page != MAP_FAILED)
		ahead = page;
}

/* A direct system call, because the library may allocate memory to find its own function,
   and allocators ask for the time. */
int clock_gettime(clockid_t id, struct timespec *t)
{
	int failed = syscall(SYS_clock_gettime, id, t);

	if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		t->tv_sec += *ahead;
	return failed;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

#if defined(__x86_64__)
/* has the kernel's function jump to clock_gettime, before the program looks for it */
__attribute__((constructor)) static void overwrite(void)
{
	char *vdso = (char *)getauxval(AT_SYSINFO_EHDR), *names = NULL, *function;
	unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* mov rax, …; jmp rax */
	Elf64_Ehdr *header = (Elf64_Ehdr *)vdso;
	Elf64_Phdr *part;
	Elf64_Dyn *d = NULL;
	Elf64_Sym *symbol = NULL;
	int i, (*to)(clockid_t, struct timespec *) = clock_gettime;
	uintptr_t page;

	if (!vdso || !getenv("DIBS_CLOCK_GO"))
		return;
	part = (Elf64_Phdr *)(vdso + header->e_phoff);
	for (i = 0; i < header->e_phnum; i++)
		if (part[i].p_type == PT_DYNAMIC)
			d = (Elf64_Dyn *)(vdso + part[i].p_offset);
	for (; d && d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbol = (Elf64_Sym *)(vdso + d->d_un.d_ptr);
		else if (d->d_tag == DT_STRTAB)
			names = vdso + d->d_un.d_ptr;
	}
	if (!symbol || !names)
		return;
	memcpy(jump + 2, &to, sizeof to);
	for (; (char *)symbol < names; symbol++) { /* the names follow them */
		if (strcmp(names + symbol->st_name, "__vdso_clock_gettime"))
			continue;
		function = vdso + symbol->st_value;
		page = (uintptr_t)function & ~(uintptr_t)4095;
		if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
			return;
		memcpy(function, jump, sizeof jump);
		mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
	}
}
#endif
