/*
 * Which of exports.def's entry points this build of the simulated driver shows.
 *
 * SIM_DRIVER_VERSION is the newest version whose functions exist. SINCE_<version> is the visibility
 * of what came with that version: a hidden name is not found by dlsym, nor by the linker.
 */
#ifndef TESTS_SIM_VISIBILITY_H
#define TESTS_SIM_VISIBILITY_H

#if defined(SIM_OLD_DRIVER)
#define SIM_DRIVER_VERSION 11010
#elif defined(SIM_DRIVER_12_4)
#define SIM_DRIVER_VERSION 12040
#else
#define SIM_DRIVER_VERSION 13030
#endif

#define SHOWN    __attribute__((visibility("default")))
#define WITHHELD __attribute__((visibility("hidden")))

#define SINCE_2000  SHOWN
#define SINCE_2010  SHOWN
#define SINCE_2020  SHOWN
#define SINCE_2030  SHOWN
#define SINCE_3000  SHOWN
#define SINCE_3010  SHOWN
#define SINCE_3020  SHOWN
#define SINCE_4000  SHOWN
#define SINCE_4010  SHOWN
#define SINCE_4020  SHOWN
#define SINCE_5000  SHOWN
#define SINCE_5050  SHOWN
#define SINCE_6000  SHOWN
#define SINCE_6050  SHOWN
#define SINCE_7000  SHOWN
#define SINCE_8000  SHOWN
#define SINCE_9000  SHOWN
#define SINCE_9020  SHOWN
#define SINCE_10000 SHOWN
#define SINCE_10010 SHOWN
#define SINCE_10020 SHOWN
#define SINCE_11000 SHOWN
#define SINCE_11010 SHOWN
#if SIM_DRIVER_VERSION >= 12040
#define SINCE_11020 SHOWN
#define SINCE_11030 SHOWN
#define SINCE_11040 SHOWN
#define SINCE_11060 SHOWN
#define SINCE_11070 SHOWN
#define SINCE_12000 SHOWN
#define SINCE_12010 SHOWN
#define SINCE_12020 SHOWN
#define SINCE_12030 SHOWN
#define SINCE_12040 SHOWN
#else
#define SINCE_11020 WITHHELD
#define SINCE_11030 WITHHELD
#define SINCE_11040 WITHHELD
#define SINCE_11060 WITHHELD
#define SINCE_11070 WITHHELD
#define SINCE_12000 WITHHELD
#define SINCE_12010 WITHHELD
#define SINCE_12020 WITHHELD
#define SINCE_12030 WITHHELD
#define SINCE_12040 WITHHELD
#endif
#if SIM_DRIVER_VERSION >= 13030
#define SINCE_12050 SHOWN
#define SINCE_12060 SHOWN
#define SINCE_12080 SHOWN
#define SINCE_12090 SHOWN
#define SINCE_13000 SHOWN
#define SINCE_13010 SHOWN
#define SINCE_13020 SHOWN
#define SINCE_13030 SHOWN
#else
#define SINCE_12050 WITHHELD
#define SINCE_12060 WITHHELD
#define SINCE_12080 WITHHELD
#define SINCE_12090 WITHHELD
#define SINCE_13000 WITHHELD
#define SINCE_13010 WITHHELD
#define SINCE_13020 WITHHELD
#define SINCE_13030 WITHHELD
#endif

#endif
