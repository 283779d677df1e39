#!/usr/bin/env python3
"""Checks what nvcc makes of the kernels in cuda/, for every GPU they are built for. No GPU is needed.

usage: scripts/check_kernels.py [BUILD]    after scripts/setup.sh; BUILD is its build folder (default: build)

Fails if ptxas spills a register, needs a stack frame or local memory, or gives a kernel more registers than the table
in cuda/README.md allows. Fails if the PTX of a kernel has fewer loads and stores of 16 bytes than its vectors need, an
access that is not known to be of global memory, or an atomic operation on floats, whose order would be chance. (PTX is
what ptxas is given. The machine code is not looked at: it may still split an access, though no ptxas we know does.)
Compiler flags and architectures are those of the build.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "cuda/README.md"

Kernel = collections.namedtuple("Kernel", "file name arch registers problems")


def fail(message):
    sys.exit(f"check_kernels: {message}")


def budgets():
    """{architecture: registers}, from the table under 'Registers' in the README."""
    section = README.read_text().split("\n## Registers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| sm_(\d+) \| (\d+) \|", section, re.MULTILINE)
    return {arch: int(most) for arch, most in rows}


def nvcc_commands(build):
    """{file: arguments} of the kernels' sources in this build, without what is of the output alone; architectures."""
    path = build / "compile_commands.json"
    if not path.exists():
        fail(f"{path} is missing: call scripts/setup.sh first")
    commands, archs = {}, set()
    for entry in json.loads(path.read_text()):
        file = pathlib.Path(entry["file"])
        words = shlex.split(entry["command"])
        nvcc = next((i for i, word in enumerate(words) if os.path.basename(word) == "nvcc"), None)
        if file.parent != ROOT / "cuda" or nvcc is None:
            continue
        words = words[nvcc : words.index("-o")] + words[words.index("-o") + 2 :]
        archs |= {arch for word in words for arch in re.findall(r"^--generate-code=.*code=\[?(?:.*,)?sm_(\d+)", word)}
        commands[file] = [w for w in words if w != "-c" and w != str(file) and not w.startswith("--generate-code=")]
    if not commands:
        fail(f"{build} was configured without CUDA: there is nothing to check")
    return commands, sorted(archs, key=int)


def compile_for(arch, file, arguments):
    """What ptxas says, and the PTX."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"--generate-code=arch=compute_{arch},code=sm_{arch}"
        output = ["-cubin", "-keep", "-keep-dir", folder, "-Xptxas", "-v", str(file), "-o", f"{folder}/kernels.cubin"]
        done = subprocess.run([*arguments, target, *output], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"{file.name} for sm_{arch} does not compile:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr, pathlib.Path(folder, f"{file.stem}.ptx").read_text()


def after_each(mark, text):
    """{what the mark's group matched: the text from there to the next mark}"""
    parts = re.split(mark, text)
    return dict(zip(parts[1::2], parts[2::2]))


def readable(mangled):
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout
    kernel, types = re.search(r"(\w+)_kernel<([^>]*)>", name).groups()
    return kernel, [word.split("::")[-1] for word in types.split(", ")]


def wide_accesses(kernel, types):
    """Loads and stores of 16 bytes that the kernel must have. Of flat vectors those beside aligned parameters and those
    beside others; of parameters the former, where they are as wide as the state."""
    velocity = (kernel in ("step", "step_apart") and types[1] == "true") or (kernel == "apply" and types[2] == "true")
    mixes = kernel in ("apply", "scatter") and types[-1] == "true"
    flat_loads, flat_stores = {
        "send": (1, 1),
        "apply": (2 + velocity, 1 + velocity),
        "step_apart": (2 + velocity, 1 + velocity),
        "delta": (1, 1),
        "gather": (0, 1),
        "scatter": (1, 0),
        "step": (2 + velocity, 1 + velocity),
        "summarize": (1, 0),
    }[kernel]
    if kernel in ("step", "step_apart", "summarize"):
        return flat_loads, flat_stores
    same_width = types[0] == types[1]
    reads_params = kernel in ("send", "delta", "gather") or mixes
    writes_params = kernel in ("apply", "scatter")
    return 2 * flat_loads + (same_width and reads_params), 2 * flat_stores + (same_width and writes_params)


def problems_of(said, ptx, most, kernel, types):
    """`said`: by ptxas of this kernel."""
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    if registers > most:
        yield f"{registers} registers, {most} allowed"
    for amount, what in re.findall(r"(\d+) bytes (stack frame|spill stores|spill loads|lmem)", said):
        if int(amount) > 0:
            yield f"{amount} bytes {what}"
    if re.search(r"\.local\b", ptx):
        yield "local memory in the PTX"

    # Wherever they stand on a line: after a predicate (@%p, @!%p), a brace, a label.
    accesses = collections.Counter(re.findall(r"(?<![\w.%$])(?:ld|st|atom|red)\.[\w.:]+", ptx))
    for access in accesses:
        atomic = access.startswith(("atom", "red"))
        if not re.search(r"\.(global|shared)\b" if atomic else r"\.(global|shared|param|const|local)\b", access):
            yield f"{access}: not known to be of global memory"
        if atomic and re.search(r"\.b?f(16|32|64)", access):
            yield f"{access}: not the same bits every time"
    for op, least in zip(("ld", "st"), wide_accesses(kernel, types)):
        wide = re.compile(rf"{op}\.global\.(\w+\.)*v4\.[bfsu]32$")  # of sums: v2 of 64
        found = sum(count for access, count in accesses.items() if wide.match(access))
        if found < least:
            yield f"{found} {op}.global of 16 bytes, {least} needed"


def check(job):
    arch, file, arguments, most = job
    log, ptx = compile_for(arch, file, arguments)
    bodies = after_each(r"\.entry (\w+)\(", ptx)
    kernels = []
    for mangled, said in after_each(r"Compiling entry function '(\w+)'", log).items():
        kernel, types = readable(mangled)
        problems = list(problems_of(said, bodies[mangled], most, kernel, types))
        registers = int(re.search(r"Used (\d+) registers", said)[1])
        kernels.append(Kernel(file.name, f"{kernel}<{', '.join(types)}>", arch, registers, problems))
    return kernels


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build")
    allowed = budgets()
    commands, archs = nvcc_commands(build)
    for arch in archs:
        if arch not in allowed:
            fail(f"the table in {README.relative_to(ROOT)} has no registers for sm_{arch}")
    jobs = [(arch, file, arguments, allowed[arch]) for file, arguments in commands.items() for arch in archs]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = [kernel for found in pool.map(check, jobs) for kernel in found]

    files = sorted({kernel.file for kernel in kernels})
    print("most registers of", *(f"{file:>10}" for file in files), "    allowed")
    for arch in archs:
        most = [max(k.registers for k in kernels if k.file == file and k.arch == arch) for file in files]
        print(f"{'sm_' + arch:<17}", *(f"{registers:>10}" for registers in most), f"{allowed[arch]:>10}")
    bad = [kernel for kernel in kernels if kernel.problems]
    for kernel in bad:
        print(f"{kernel.file}, sm_{kernel.arch}, {kernel.name}: {'; '.join(kernel.problems)}")
    print(f"{len(kernels) - len(bad)} kernels are as they should be, {len(bad)} are not")
    if bad or not kernels:
        sys.exit(1)


main()
