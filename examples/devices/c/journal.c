/* The journal in files. On a device without files write the three functions over its key-value store: nvs_get_blob,
   nvs_set_blob, nvs_erase_key and nvs_commit of ESP-IDF; nvs_read, nvs_write and nvs_delete of Zephyr. */
#include "device.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>

static char path[512], fresh[520]; /* of the text that was opened last */

static int open_text(int number, bool is_new)
{
    check(snprintf(path, sizeof path, "%s.%d", options.journal, number) < (int)sizeof path, "--journal is too long");
    snprintf(fresh, sizeof fresh, "%s.new", path);
    return is_new ? open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : open(path, O_RDONLY | O_CLOEXEC);
}

static bool sync_file(int file)
{
    bool is_synced = file >= 0 && fsync(file) == 0;
    return file >= 0 && close(file) == 0 && is_synced;
}

int journal_load(int number, char *text, size_t size)
{
    int file = open_text(number, false);
    if (file < 0)
        return errno == ENOENT ? 0 : -1;
    ssize_t length = read(file, text, size - 1);
    text[length > 0 ? length : 0] = '\0';
    return close(file) == 0 ? (int)length : -1;
}

bool journal_save(int number, const char *text) /* a power cut leaves the old or the new text */
{
    int file = open_text(number, true);
    bool is_written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    return sync_file(file) && is_written && rename(fresh, path) == 0 && sync_file(open(dirname(path), O_RDONLY));
}

bool journal_erase(int number)
{
    int file = open_text(number, false);
    return file >= 0 && close(file) == 0 && unlink(path) == 0 && sync_file(open(dirname(path), O_RDONLY));
}
