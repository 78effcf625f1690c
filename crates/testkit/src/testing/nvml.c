/*
 * A library that answers as NVIDIA's does, from files in DIR:
 *   cards   one line each: uuid|name|minor|memory in bytes|bus in hexadecimal|health can be watched (0 or 1)
 *   driver  the driver's version
 *   init    what nvmlInit_v2 returns; 0 without
 *   event   "xid line": told once by nvmlEventSetWait_v2, and removed; line -1 is no device
 *   lost    the number of a line that nothing can be asked of
 *   log     nvmlInit_v2 and nvmlShutdown add a line each
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TOO_SMALL 7
#define TIMEOUT 10
#define LOST 15

struct card { char uuid[96], name[96]; unsigned minor; unsigned long long memory; unsigned bus; int watched; };
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct event { struct card *device; unsigned long long kind, data; unsigned gpu, compute; };

static struct card cards[16];
static unsigned count;

static int number(const char *file, int fallback) {
  FILE *f = fopen(file, "r");
  int n = fallback;
  if (!f) return fallback;
  if (fscanf(f, "%d", &n) != 1) n = fallback;
  fclose(f);
  return n;
}

static void note(const char *what) {
  FILE *f = fopen(DIR "/log", "a");
  if (!f) return;
  fprintf(f, "%s\n", what);
  fclose(f);
}

static int lost(struct card *c) { return number(DIR "/lost", -1) == (int)(c - cards); }

static int put(char *to, unsigned len, const char *text) {
  if (strlen(text) + 1 > len) return TOO_SMALL;
  strcpy(to, text);
  return OK;
}

int nvmlInit_v2(void) {
  int code = number(DIR "/init", 0);
  FILE *f;
  if (code) return code;
  note("init");
  count = 0;
  f = fopen(DIR "/cards", "r");
  if (!f) return OK;
  while (count < 16) {
    struct card *c = &cards[count];
    memset(c, 0, sizeof *c);
    if (fscanf(f, " %95[^|]|%95[^|]|%u|%llu|%x|%d", c->uuid, c->name, &c->minor, &c->memory, &c->bus,
               &c->watched) != 6) break;
    count++;
  }
  fclose(f);
  return OK;
}

int nvmlShutdown(void) { note("shutdown"); return OK; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case 9: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    case NOT_FOUND: return "Not Found";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *to, unsigned len) {
  char text[80] = "";
  FILE *f = fopen(DIR "/driver", "r");
  if (!f) return INVALID;
  if (fscanf(f, "%79s", text) != 1) text[0] = 0;
  fclose(f);
  return put(to, len, text);
}

int nvmlDeviceGetCount_v2(unsigned *to) { *to = count; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct card **to) {
  if (index >= count) return INVALID;
  *to = &cards[index];
  return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct card **to) {
  unsigned domain, bus, i;
  if (sscanf(address, "%x:%x:", &domain, &bus) != 2) return INVALID;
  for (i = 0; i < count; i++)
    if (cards[i].bus == bus) { *to = &cards[i]; return lost(&cards[i]) ? LOST : OK; }
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(struct card *c, char *to, unsigned len) {
  return lost(c) ? LOST : put(to, len, c->uuid);
}
int nvmlDeviceGetName(struct card *c, char *to, unsigned len) { return put(to, len, c->name); }
int nvmlDeviceGetMinorNumber(struct card *c, unsigned *to) { *to = c->minor; return OK; }
int nvmlDeviceGetMemoryInfo(struct card *c, struct memory *to) {
  to->total = c->memory;
  to->free = to->total;
  to->used = 0;
  return OK;
}

int nvmlDeviceGetPciInfo_v3(struct card *c, struct pci *to) {
  memset(to, 0, sizeof *to);
  to->bus = c->bus;
  snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", c->bus);
  snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", c->bus);
  return OK;
}

int nvmlEventSetCreate(void **to) { static int set; *to = &set; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(struct card *c, unsigned long long types, void *set) {
  (void)set;
  if (types != 8) return INVALID;
  return c->watched ? OK : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, struct event *to, unsigned patience) {
  unsigned waited;
  (void)set;
  for (waited = 0; ; waited += 10) {
    unsigned long long xid;
    int line;
    FILE *f = fopen(DIR "/event", "r");
    if (f) {
      int read = fscanf(f, "%llu %d", &xid, &line);
      fclose(f);
      unlink(DIR "/event");
      if (read == 2) {
        memset(to, 0, sizeof *to);
        if (line >= 0 && (unsigned)line < count) to->device = &cards[line];
        to->kind = 8;
        to->data = xid;
        return OK;
      }
    }
    if (waited >= patience) return TIMEOUT;
    usleep(10000);
  }
}
