#pragma once

/// Exit code of a replica that lost contact with the others: a consequence, the cause is another replica's.
inline constexpr int exit_lost_contact = 3;

/// Whether this process was started by launch_replicas or torchrun, so must train and not launch.
bool is_replica();
/// Whether launch_replicas watches over this process and will say why replicas ended.
bool is_watched();

/// Starts this program again, `count` times, with the variables that torchrun would set, and waits for all of them.
/// If one fails, or SIGINT or SIGTERM comes, it stops the others and says so in one line; if this process dies, the
/// kernel kills them. Returns the exit code: 0 if all ended well, 1 if one failed, 128 + the signal's number.
int launch_replicas(int count, char** argv);
