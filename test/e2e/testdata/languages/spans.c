// The thread context of OTEP 4947: each thread publishes its active span.

#include <stdint.h>
#include <string.h>

struct record {
	uint8_t trace[16], span[8], valid, reserved;
	uint16_t size;
	uint8_t key, length;
	char value[8];
};

__thread struct record *otel_thread_ctx_v1;
static __thread struct record own;

void publish(uint8_t id) {
	otel_thread_ctx_v1 = 0;
	memset(own.trace, id, sizeof own.trace);
	memset(own.span, id, sizeof own.span);
	own.key = 1; // http.route in the process context
	own.length = sizeof own.value;
	memcpy(own.value, "/route/0", sizeof own.value);
	own.value[7] += id;
	own.size = 2 + sizeof own.value;
	own.valid = 1;
	otel_thread_ctx_v1 = &own;
}

void withdraw(void) { otel_thread_ctx_v1 = 0; }
