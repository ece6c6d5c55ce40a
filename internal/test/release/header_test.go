package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"debug/macho"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// expectHeaders checks the header of the program in each archive of a release: it is a program for the platform in the
// name of the archive, and a program for Linux needs no other file.
func expectHeaders(t *testing.T, dist string) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(dist, "*.tar.gz"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives in %s: %v", dist, err)
	}
	machines := map[string]string{
		"linux_amd64": "EM_X86_64", "linux_arm64": "EM_AARCH64", "linux_armv7": "EM_ARM", "darwin_amd64": "CpuAmd64", "darwin_arm64": "CpuArm64",
	}
	for _, archive := range archives {
		platform := strings.Join(strings.Split(strings.TrimSuffix(filepath.Base(archive), ".tar.gz"), "_")[2:], "_")
		machine := "no known format"
		program := bytes.NewReader(extractProgram(t, archive))
		if f, err := elf.NewFile(program); err == nil {
			machine = f.Machine.String()
			if f.Section(".interp") != nil {
				t.Errorf("%s: the program is not static", platform)
			}
		} else if f, err := macho.NewFile(program); err == nil {
			machine = f.Cpu.String()
		}
		if machine != machines[platform] {
			t.Errorf("%s: the header says %s", platform, machine)
		}
		t.Logf("%s: %s", platform, machine)
	}
}

// extractProgram returns the file dispatcher in the archive.
func extractProgram(t *testing.T, archive string) []byte {
	t.Helper()
	file, err := os.Open(archive)
	must.Succeed(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	must.Succeed(t, err)
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if err != nil {
			t.Fatalf("%s has no program: %v", archive, err)
		}
		if filepath.Base(header.Name) == "dispatcher" && header.Typeflag == tar.TypeReg {
			program, err := io.ReadAll(files)
			must.Succeed(t, err)
			return program
		}
	}
}
